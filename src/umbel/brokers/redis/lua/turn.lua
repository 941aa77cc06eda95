-- One turn: settle, mark as begun, take what is due, lease.
-- ARGV: MessagePack of {owner, number, queues, settlements, begin, limit, lost_only, now, version
--       of the routes or nil where no follow-up was routed, limits of dead letters}; then envelopes and values that it
--       names by number
-- Returns {status, …}:
--   {0, version of revocations, deliveries, lost leases, {lease, sentence} of the refused}
--       with deliveries {lease, queue, state, envelope}
--   {1} the owner isn't known    {2} the routes are others by now, nothing was done
--   {3, last} the number came before
local q = cmsgpack.unpack(ARGV[1])
local owner, number, queues, limit, now = q[1], q[2], q[3], q[6], q[8]
local okey, leases = key('owner:' .. owner), key('leases:' .. owner)
local known = call('HMGET', okey, 'begin', 'last', 'turn', 'reply')
if not known[1] then return { 1 } end
local begin, last, turn = tonumber(known[1]), tonumber(known[2]), tonumber(known[3])
local revocations = tonumber(call('GET', key('revocations:version')) or 0)

if number > 0 and number <= turn then
  if number < turn then return { 3, turn } end
  local reply = cmsgpack.unpack(known[4])
  local again = {}
  for lease = reply[1], last do
    local rec = call('HGET', leases, num(lease))
    if rec then
      local queue, text, raw = parts(rec)
      again[#again + 1] = { lease, queue, text, raw }
    end
  end
  return { 0, revocations, again, reply[2], reply[3] }
end
if q[9] and version() ~= q[9] then return { 2 } end

local lost, refused = {}, {}
if #q[4] > 0 then
  lost, refused = settle(owner, q[4], now, q[10])
end

local first = last + 1
local out, records = {}, {}
local function lease(queue, text, raw)
  last = last + 1
  out[#out + 1] = { last, queue, text, raw }
  records[#records + 1] = num(last)
  records[#records + 1] = record(queue, text, raw)
end

-- A stranger's message has no number: it gets one just below that of the message behind it, or a
-- new one.
local function number_of_stranger(behind)
  if behind then return num(tonumber(behind) - 1 / 64) end
  return num(call('INCR', key('n')))
end
local function lease_elements(queue, step, elements, name)
  local behind
  local states = {}
  for i = #elements, 1, -1 do
    local text, raw = split(elements[i])
    if not text then
      if not behind then
        local next_one = call('LINDEX', name, -1)
        local next_text = next_one and split(next_one)
        behind = next_text and words(next_text)[1]
      end
      text = number_of_stranger(behind) .. ' ' .. step
    end
    behind = string.match(text, '^[^ ]+')
    states[i] = { text, raw }
  end
  for i = 1, #elements do lease(queue, states[i][1], states[i][2]) end
end
-- The rank of a list's next element. A stranger's is numbered where it stands, so that several
-- lists without numbers are served in turns.
local function rank_of_head(name, step)
  local elem = call('LINDEX', name, -1)
  if not elem then return nil end
  local text, raw = split(elem)
  if not text then
    local second = call('LINDEX', name, -2)
    local behind = second and split(second)
    text = number_of_stranger(behind and words(behind)[1]) .. ' ' .. step
    call('LSET', name, -1, element(text, raw))
  end
  return rank(words(text))
end
local function lease_merged(step, heads)
  while #out < limit and #heads > 0 do
    local best = 1
    for i = 2, #heads do
      if heads[i][3] < heads[best][3] then best = i end
    end
    local queue, name = heads[best][1], heads[best][2]
    lease_elements(queue, step, { call('RPOP', name) }, name)
    heads[best][3] = rank_of_head(name, step)
    if not heads[best][3] then table.remove(heads, best) end
  end
end
local function lease_lost()
  local found = {}
  for _, queue in ipairs(queues) do
    local records = call('ZRANGE', side(queue, 'lost'), 0, limit - 1, 'WITHSCORES')
    for i = 1, #records, 2 do
      found[#found + 1] = { tonumber(records[i + 1]), queue, records[i] }
    end
  end
  if #found > 1 then table.sort(found, function(a, b) return a[1] < b[1] end) end
  for i = 1, math.min(limit, #found) do
    call('ZREM', side(found[i][2], 'lost'), found[i][3])
    lease(parts(found[i][3]))
  end
end
local function lease_ready()
  for _, step in ipairs(SERVE) do
    if #out >= limit then return end
    local heads = {}
    if #queues == 1 then
      heads[1] = { queues[1], list(queues[1], step) }
    else
      for _, queue in ipairs(queues) do
        local name = list(queue, step)
        if call('EXISTS', name) == 1 then heads[#heads + 1] = { queue, name } end
      end
    end
    if #heads == 1 then
      local elements = call('RPOP', heads[1][2], limit - #out)
      if elements then lease_elements(heads[1][1], step, elements, heads[1][2]) end
    elseif #heads > 1 then
      for _, head in ipairs(heads) do head[3] = rank_of_head(head[2], step) end
      lease_merged(step, heads)
    end
  end
end

if limit > 0 then
  lease_lost()
  if not q[7] then
    promote(now)
    lease_ready()
  end
  for i = 1, #records, 1000 do
    call('HSET', leases, unpack(records, i, math.min(i + 999, #records)))
  end
end

-- A turn that did nothing isn't written down.
if #q[4] > 0 or #out > 0 or q[5] > begin then
  local fields = { 'begin', num(math.max(begin, q[5])), 'last', num(last) }
  -- A server at its memory limit lets a script write that has begun with what needs none.
  if #q[4] == 0 and #out == 0 then call('HDEL', okey, 'none') end
  if number > 0 then
    fields[5], fields[6] = 'turn', num(number)
    fields[7], fields[8] = 'reply', cmsgpack.pack({ first, lost, refused })
  end
  call('HSET', okey, unpack(fields))
end
return { 0, revocations, out, lost, refused }
