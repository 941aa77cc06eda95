-- Delete what waits or is due later.
-- ARGV: queues
-- Returns how many.
local purged = 0
for _, queue in ipairs(ARGV) do
  for _, step in ipairs(SERVE) do purged = purged + call('LLEN', list(queue, step)) end
  purged = purged + call('ZCARD', side(queue, 'due'))
  forget_waiting(queue)
end
return purged
