-- Put messages that are due later where Celery's workers find them.
-- ARGV: of each message four: queue, record, step, envelope
-- Returns how many were still there.
local moved = 0
for i = 1, #ARGV, 4 do
  local queue, rec = ARGV[i], ARGV[i + 1]
  if call('ZREM', side(queue, 'due'), rec) == 1 then
    call('LPUSH', list(queue, ARGV[i + 2]), ARGV[i + 3])
    reindex(queue)
    moved = moved + 1
  end
end
return moved
