-- Delete dead letters.
-- ARGV: MessagePack of {task ids or nil for all, queue or nil for all}
-- Returns how many.
local q = cmsgpack.unpack(ARGV[1])
local ids, only = q[1], q[2]
local deleted = 0
if ids then
  for _, id in ipairs(ids) do
    for _, member in
      ipairs(call('ZRANGEBYLEX', key('dead-ids'), '[' .. id .. '\0', '(' .. id .. '\1'))
    do
      local n, queue = string.match(string.sub(member, #id + 2), '^([^%z]*)%z(.*)$')
      if not only or only == queue then
        drop_letter(queue, n)
        deleted = deleted + 1
      end
    end
  end
  return deleted
end
for _, queue in ipairs(only and { only } or call('HKEYS', key('queues'))) do
  for _, n in ipairs(call('ZRANGE', side(queue, 'dead'), 0, -1)) do
    drop_letter(queue, n)
    deleted = deleted + 1
  end
end
return deleted
