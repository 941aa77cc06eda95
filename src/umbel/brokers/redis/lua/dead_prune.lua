-- Drop the dead letters that are over the limits.
-- ARGV: now, MessagePack of the limits
-- Returns how many.
local dropped = 0
for _, queue in ipairs(call('HKEYS', key('queues'))) do
  dropped = dropped + retain(queue, ARGV[1], cmsgpack.unpack(ARGV[2]))
end
return dropped
