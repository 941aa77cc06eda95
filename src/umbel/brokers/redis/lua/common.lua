-- What every script begins with: names of keys, and the three forms of a message. See keys.py.
--
-- Before this stand constants, written by scripts.py:
--   PREFIX  before every key     SEP    between a queue's name and a step
--   SERVE   the steps in the order in which they are served, such as {9, 6, 3, 0}
--
-- A state (what we count beside a message) is a text of words between spaces:
--   n step redeliveries redelivered front unknown_since history loss detail info
-- where "-" says that there is none, and the last eight may be missing. Words are escaped as in
-- URLs; times are as Python writes them, since this language would round them.
--   element  a message in one of Kombu's lists: its envelope, with the state as first key
--   record   a message anywhere else: queue NUL state NUL envelope

local call = redis.call
local FRONT = 2 ^ 52
local HISTORY_LENGTH = 50

local function key(name) return PREFIX .. 'umbel:' .. name end
local function side(queue, name) return PREFIX .. 'umbel:{' .. queue .. '}:' .. name end
local function list(queue, step)
  step = tonumber(step)
  if step == 0 then return PREFIX .. queue end
  return PREFIX .. queue .. SEP .. step
end

local function num(n) return string.format('%.17g', n) end

local function escape(text)
  if text == '' then return '-' end
  return (string.gsub(text, '[^%w%._/]', function(c) return string.format('%%%02X', string.byte(c)) end))
end
local function unescape(word)
  if word == '-' then return '' end
  return (string.gsub(word, '%%(%x%x)', function(x) return string.char(tonumber(x, 16)) end))
end

local function version() return call('GET', key('routes')) or '0' end

-- States

local PLAIN = '000-----'
local function words(text)
  local t = {}
  for word in string.gmatch(text, '[^ ]+') do t[#t + 1] = word end
  for i = 3, 10 do t[i] = t[i] or (i < 6 and '0' or '-') end
  return t
end
local function text_of(t)
  if table.concat(t, '', 3, 10) == PLAIN then return t[1] .. ' ' .. t[2] end
  return table.concat(t, ' ')
end
local function rank(t)
  if t[5] == '1' then return tonumber(t[1]) - FRONT end
  return tonumber(t[1])
end

-- Forms

local function element(text, raw)
  -- What isn't an object in JSON can't carry a state: it comes back as it was sent.
  if not string.find(raw, '^{%s*"') then return raw end
  return '{"umbel":"' .. text .. '",' .. string.sub(raw, 2)
end
local function split(elem)
  local _, last, text = string.find(elem, '^{"umbel":%s?"([^"]*)",')
  if last then return text, '{' .. string.sub(elem, last + 1) end
  return nil, elem
end
local function record(queue, text, raw) return queue .. '\0' .. text .. '\0' .. raw end
local function parts(rec)
  local a = string.find(rec, '\0', 1, true)
  local b = string.find(rec, '\0', a + 1, true)
  return string.sub(rec, 1, a - 1), string.sub(rec, a + 1, b - 1), string.sub(rec, b + 1)
end

-- Due later

local function reindex(queue)
  local first = call('ZRANGE', side(queue, 'due'), 0, 0, 'WITHSCORES')
  if first[1] then
    call('ZADD', key('due'), first[2], queue)
  else
    call('ZREM', key('due'), queue)
  end
end
local function delay(queue, due, rec)
  call('ZADD', side(queue, 'due'), due, rec)
  call('ZADD', key('due'), 'LT', due, queue)
end

-- Waiting

local function rank_of_element(elem)
  local text = split(elem)
  if not text then return nil end
  return rank(words(text))
end
-- To its place among those that wait. What has a lower rank stands nearer to the end that is
-- taken from; it was given back before, so there is seldom any.
local function place(queue, t, raw)
  local name = list(queue, t[5] == '1' and SERVE[1] or t[2])
  local mine, moved = rank(t), {}
  while true do
    local elem = call('LINDEX', name, -1)
    local other = elem and rank_of_element(elem)
    if not other or other >= mine then break end
    moved[#moved + 1] = call('RPOP', name)
  end
  call('RPUSH', name, element(text_of(t), raw))
  for i = #moved, 1, -1 do call('RPUSH', name, moved[i]) end
end
local function to_the_back(queue, t, raw)
  if t[5] == '1' then return place(queue, t, raw) end
  call('LPUSH', list(queue, t[2]), element(text_of(t), raw))
end

-- Move what has fallen due to the back of its queue, in the order of due times.
local function promote(now)
  local queues = call('ZRANGEBYSCORE', key('due'), '-inf', now)
  if #queues == 0 then return end
  local ripe = {}
  for _, queue in ipairs(queues) do
    local found =
      call('ZRANGEBYSCORE', side(queue, 'due'), '-inf', now, 'WITHSCORES', 'LIMIT', 0, 1000)
    for i = 1, #found, 2 do
      local _, text, raw = parts(found[i])
      ripe[#ripe + 1] = { tonumber(found[i + 1]), queue, words(text), raw }
      call('ZREM', side(queue, 'due'), found[i])
    end
    reindex(queue)
  end
  table.sort(ripe, function(a, b)
    if a[1] ~= b[1] then return a[1] < b[1] end
    return tonumber(a[3][1]) < tonumber(b[3][1])
  end)
  for _, each in ipairs(ripe) do
    each[3][1] = num(call('INCR', key('n')))
    to_the_back(each[2], each[3], each[4])
  end
end

-- To channels, with NUL between them; how many listeners heard it. Ours know it by its state.
local function tell(channels, raw)
  local heard = 0
  for name in string.gmatch(channels, '[^%z]+') do
    heard = heard + call('PUBLISH', name, element('0 0', raw))
  end
  return heard
end

-- Store postings: each {queue, step, due or '', the number of the argument that is its envelope}; or
-- {channels, below 0, '', …}, for those who listen to a fanout exchange and have no queue here.
local function store(postings)
  local count = #postings
  if count == 0 then return end
  local n = call('INCRBY', key('n'), count) - count
  for i, each in ipairs(postings) do
    local queue, step, due, raw = each[1], each[2], each[3], ARGV[each[4]]
    local text = num(n + i) .. ' ' .. step
    if tonumber(step) < 0 then
      tell(queue, raw)
    elseif due == '' then
      call('LPUSH', list(queue, step), element(text, raw))
    else
      delay(queue, due, record(queue, text, raw))
    end
  end
end

-- Groups of postings are what the arguments hold from the one of the number `first` on:
--   queue, step, due or '', how many, as many envelopes
-- with channels and a step below 0 where there is no queue here: -1, or -2 where it must be heard.
local function each_group(first, act)
  local i = first
  while i <= #ARGV do
    local count = tonumber(ARGV[i + 3])
    act(ARGV[i], ARGV[i + 1], ARGV[i + 2], i + 4, i + 3 + count)
    i = i + 4 + count
  end
end

-- Tell what must be heard; the number of the first envelope that nobody hears, or nil.
local function tell_groups(first)
  local number, unheard = 0, nil
  each_group(first, function(channels, step, _, from, to)
    for i = from, to do
      number = number + 1
      if step == '-2' and not unheard and tell(channels, ARGV[i]) == 0 then unheard = number end
    end
  end)
  return unheard
end

-- Store the others.
local function store_groups(first)
  each_group(first, function(queue, step, due, from, to)
    if step == '-1' then
      for i = from, to do tell(queue, ARGV[i]) end
    elseif step ~= '-2' then
      local n = call('INCRBY', key('n'), to - from + 1) - to
      local elements, suffix = {}, ' ' .. step
      for i = from, to do
        local text, raw = num(n + i) .. suffix, ARGV[i]
        if due ~= '' then
          delay(queue, due, record(queue, text, raw))
        else
          elements[#elements + 1] = element(text, raw)
          if #elements == 1000 then
            call('LPUSH', list(queue, step), unpack(elements))
            elements = {}
          end
        end
      end
      if #elements > 0 then call('LPUSH', list(queue, step), unpack(elements)) end
    end
  end)
end
