-- Give a named lease, or renew it.
-- ARGV: name, holder, seconds, now, seconds by which clocks may differ
-- Returns 1 where the holder has it now, else 0.
local name, seconds, now = key('lease:' .. ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4])
local known = call('HMGET', name, 'holder', 'until', 'seconds')
if not known[1] or known[1] == ARGV[2] or tonumber(known[2]) <= now then
  call('HSET', name, 'holder', ARGV[2], 'until', num(now + seconds), 'seconds', ARGV[3])
  keep(name, seconds)
  return 1
end
local given = tonumber(known[3])
if tonumber(known[2]) - given > now + tonumber(ARGV[5]) then
  -- The clock was set back: else it would last until time has caught up.
  call('HSET', name, 'until', num(now + given))
  keep(name, given)
end
return 0
