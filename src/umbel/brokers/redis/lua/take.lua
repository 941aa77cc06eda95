-- Take tokens out of a bucket, all or none.
-- ARGV: name, amount, rate, burst, now, seconds by which clocks may differ, seconds that a taker
--       may come too early
-- Returns '0' where they were taken, else the seconds until they will be there.
local name, amount, rate = key('bucket:' .. ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local burst, now, skew = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local known = call('HMGET', name, 'tokens', 'at')
local tokens, at = tonumber(known[1] or burst), tonumber(known[2] or now)
if at > now + skew then at = now end
tokens = math.min(burst, tokens + math.max(0, now - at) * rate)
at = math.max(at, now)
local wait = 0
if tokens + tonumber(ARGV[7]) * rate >= amount then
  tokens = tokens - amount
else
  wait = at - now + (amount - tokens) / rate
end
call('HSET', name, 'tokens', num(tokens), 'at', num(at))
keep(name, (burst - tokens) / rate + skew)
return num(wait)
