-- Make dead letters of what awaits burial in all queues: there is no worker to bury it.
-- ARGV: now, MessagePack of the limits of dead letters
-- Returns how many.
local buried, limits = 0, cmsgpack.unpack(ARGV[2])
for _, queue in ipairs(call('HKEYS', key('queues'))) do
  for _, rec in ipairs(call('ZRANGE', side(queue, 'lost'), 0, -1)) do
    local _, text, raw = parts(rec)
    local t = words(text)
    bury(queue, t, raw, unescape(t[9]), 'WorkerLostError', ARGV[1], limits)
    buried = buried + 1
  end
  call('DEL', side(queue, 'lost'))
end
return buried
