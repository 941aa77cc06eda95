-- Make queues and bindings exist.
-- ARGV: MessagePack of {version of the routes, queues, run or nil, bindings as members of the set,
--       {exchange, member} of Kombu's binding sets}
-- Returns {0}; {1} the routes are others by now; {2} the run isn't alive; {3, queue} is not the
-- run's own. Nothing was done but for 0.
local q = cmsgpack.unpack(ARGV[1])
local run, queues = q[3], key('queues')
if version() ~= q[1] then return { 1 } end
if run then
  if call('EXISTS', key('run:' .. run)) == 0 then return { 2 } end
  for _, queue in ipairs(q[2]) do
    local known = call('HGET', queues, queue)
    if known and known ~= 'x' and known ~= 'r' .. run then return { 3, queue } end
  end
end
local changed = false
for _, queue in ipairs(q[2]) do
  local known = call('HGET', queues, queue)
  if not known or (known == 'x' and run) then
    call('HSET', queues, queue, run and 'r' .. run or '')
    changed = true
  end
end
for _, member in ipairs(q[4]) do
  if not call('ZSCORE', key('bindings'), member) then
    call('ZADD', key('bindings'), num(call('INCR', key('n'))), member)
    changed = true
  end
end
for _, each in ipairs(q[5]) do
  call('SADD', PREFIX .. '_kombu.binding.' .. each[1], each[2])
  call('SADD', PREFIX .. '_kombu.binding_permanent.' .. each[1], each[2])
end
if changed then call('INCR', key('routes')) end
return { 0 }
