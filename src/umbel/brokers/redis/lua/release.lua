-- Give a named lease back.
-- ARGV: name, holder, now
-- Returns 1 where it was the holder's until now, else 0.
local name = key('lease:' .. ARGV[1])
local known = call('HMGET', name, 'holder', 'until')
if known[1] ~= ARGV[2] then return 0 end
call('DEL', name)
return tonumber(known[2]) > tonumber(ARGV[3]) and 1 or 0
