-- Put back what Celery's workers have held for longer than the visibility timeout: as Kombu does it,
-- to the front of its queue, so that it is served next.
-- ARGV: token of the mutex, its key, key of the hash, key of the index, latest time of delivery;
--       then of each entry three and more: tag, envelope (empty: the hash has none), how many
--       lists, these
-- Returns how many were put back, or -1 where the mutex is another's.
if call('GET', ARGV[2]) ~= ARGV[1] then return -1 end
local restored, i = 0, 6
while i <= #ARGV do
  local tag, envelope, count = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local delivered_at = call('ZSCORE', ARGV[4], tag)
  -- It may have been acknowledged since, or delivered again.
  if delivered_at and tonumber(delivered_at) <= tonumber(ARGV[5]) then
    call('ZREM', ARGV[4], tag)
    if call('HDEL', ARGV[3], tag) == 1 then
      for n = 1, count do call('RPUSH', ARGV[i + 2 + n], envelope) end
      restored = restored + 1
    end
  end
  i = i + 3 + count
end
return restored
