-- Add to a counter.
-- ARGV: name, what to add, seconds that it is kept after a change, now
-- Returns its value.
local name, by, now = key('count:' .. ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[4])
local known = call('HMGET', name, 'value', 'until')
local value = by
if known[1] and tonumber(known[2]) > now then value = value + tonumber(known[1]) end
if value == 0 then
  call('DEL', name)
elseif by ~= 0 then
  call('HSET', name, 'value', num(value), 'until', num(now + tonumber(ARGV[3])))
  keep(name, tonumber(ARGV[3]))
end
return num(value)
