-- End an owner whose process is dead, with what is known of its leases.
-- ARGV: MessagePack of {owner, settlements, running as {lease, loss, detail}, now, version of the
--       routes or nil, limits of dead letters}; then envelopes and values that it
--       names by number
-- Returns 1, or 0 where the routes are others by now and nothing was done.
local q = cmsgpack.unpack(ARGV[1])
local owner, now, limits = q[1], q[4], q[6]
local run = call('HGET', key('owner:' .. owner), 'run')
if not run then return 1 end
if q[5] and version() ~= q[5] then return 0 end
local running = {}
for _, each in ipairs(q[3]) do running[num(each[1])] = { each[2], each[3] } end
local _, refused = settle(owner, q[2], now, limits)
for _, each in ipairs(refused) do running[num(each[1])] = { 'process', each[2] } end
end_owner(run, owner, running, nil, 0, now, limits)
call('SADD', key('run:' .. run .. ':gone'), owner)
return 1
