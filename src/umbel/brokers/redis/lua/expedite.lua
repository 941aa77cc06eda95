-- Put messages that wait or are due later first in their queue.
-- ARGV: of each message three: queue, step of the list that it was seen in (empty: it was due
--       later), element or record
-- Returns of each 1, or 0 where it isn't there any more.
local found = {}
for i = 1, #ARGV, 3 do
  local queue, step, seen = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local gone, text, raw
  if step == '' then
    gone = call('ZREM', side(queue, 'due'), seen)
    if gone == 1 then reindex(queue) end
    local _
    _, text, raw = parts(seen)
  else
    gone = call('LREM', list(queue, step), -1, seen)
    text, raw = split(seen)
  end
  if gone == 1 then
    local t = words(text or (num(call('INCR', key('n'))) .. ' ' .. step))
    t[5] = '1'
    place(queue, t, raw)
  end
  found[#found + 1] = gone
end
return found
