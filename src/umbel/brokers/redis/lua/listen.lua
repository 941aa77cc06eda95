-- Bind a listener as Kombu would, and clear away those whose time is over.
-- ARGV: now, until when it is bound, exchange, Kombu's member
-- Returns 1.
local listeners = key('listeners')
local function binding(exchange) return PREFIX .. '_kombu.binding.' .. exchange end
for _, old in ipairs(call('ZRANGEBYSCORE', listeners, '-inf', ARGV[1])) do
  local nul = string.find(old, '\0', 1, true)
  call('SREM', binding(string.sub(old, 1, nul - 1)), string.sub(old, nul + 1))
  call('ZREM', listeners, old)
end
call('SADD', binding(ARGV[3]), ARGV[4])
call('ZADD', listeners, ARGV[2], ARGV[3] .. '\0' .. ARGV[4])
return 1
