-- Taking ids out of the log of revocations. After common.lua.
local function unrevoke(ids)
  local wanted, gone = {}, false
  for _, id in ipairs(ids) do wanted[id] = true end
  for _, entry in ipairs(call('ZRANGE', key('revocations'), 0, -1)) do
    if wanted[string.match(entry, '^[^%z]*%z[^%z]*%z[^%z]*%z[^%z]*%z(.*)$')] then
      call('ZREM', key('revocations'), entry)
      gone = true
    end
  end
  if gone then call('INCR', key('revocations:version')) end
end
