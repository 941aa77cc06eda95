-- Put an answer where Kombu's bindings of an exchange lead to.
-- ARGV: exchange, routing key, envelope, milliseconds for which it is kept
-- Returns how many listeners there are.
local found = 0
local wanted = ARGV[2] .. SEP
for _, member in ipairs(call('SMEMBERS', PREFIX .. '_kombu.binding.' .. ARGV[1])) do
  if string.sub(member, 1, #wanted) == wanted then
    local pattern_end = select(2, string.find(member, SEP, #wanted + 1, true))
    local name = PREFIX .. string.sub(member, (pattern_end or #wanted) + 1)
    call('LPUSH', name, ARGV[3])
    call('PEXPIRE', name, ARGV[4])
    found = found + 1
  end
end
return found
