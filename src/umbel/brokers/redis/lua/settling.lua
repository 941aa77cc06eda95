-- Ends of deliveries: settlements, giving back, setting aside, dead letters. After common.lua.
--
-- A dead letter is words between spaces, escaped as in a state, then NUL and the envelope:
--   id reason error died_at redeliveries history size

local function log_base(step)
  for i, each in ipairs(SERVE) do
    if each == tonumber(step) then return i * 2 ^ 46 end
  end
  return (#SERVE + 1) * 2 ^ 46
end
-- The place among what awaits burial: by step, then by the order of arrival.
local function place_of_lost(t)
  if t[5] == '1' then return num(tonumber(t[1])) end
  return num(log_base(t[2]) + tonumber(t[1]))
end

local function has_ended(queue) return call('HGET', key('queues'), queue) == 'x' end

-- Dead letters

local function letter_words(letter)
  local t = {}
  for word in string.gmatch(string.sub(letter, 1, string.find(letter, '\0', 1, true) - 1), '[^ ]+') do
    t[#t + 1] = word
  end
  return t
end
local function drop_letter(queue, n)
  local letter = call('HGET', side(queue, 'letters'), n)
  call('ZREM', side(queue, 'dead'), n)
  if not letter then return end
  local t = letter_words(letter)
  call('HDEL', side(queue, 'letters'), n)
  call('ZREM', key('dead-ids'), unescape(t[1]) .. '\0' .. n .. '\0' .. queue)
  if call('DECRBY', side(queue, 'dead-bytes'), t[7]) <= 0 then
    call('DEL', side(queue, 'dead-bytes'))
  end
end
-- Keep what count, age and bytes (in this order in `limits`) allow; the newest is kept however
-- large it is. How many were dropped.
local function retain(queue, now, limits)
  local dropped = 0
  local count = call('ZCARD', side(queue, 'dead'))
  while count > 0 do
    local n = call('ZRANGE', side(queue, 'dead'), 0, 0)[1]
    local letter = call('HGET', side(queue, 'letters'), n)
    local too_old = tonumber(letter_words(letter)[4]) < tonumber(now) - limits[2]
    local too_large = count > 1
      and tonumber(call('GET', side(queue, 'dead-bytes')) or 0) > limits[3]
    if not (too_old or too_large or count > limits[1]) then break end
    drop_letter(queue, n)
    dropped = dropped + 1
    count = count - 1
  end
  return dropped
end
local function id_of(raw)
  local fine, envelope = pcall(cjson.decode, raw)
  if not fine or type(envelope) ~= 'table' or type(envelope.headers) ~= 'table' then return '' end
  local id = envelope.headers.id
  return type(id) == 'string' and id or ''
end
local function history_with(t, now, note)
  local entries = {}
  if t[7] ~= '-' then
    for each in string.gmatch(t[7], '[^,]+') do entries[#entries + 1] = each end
  end
  entries[#entries + 1] = now .. ':' .. escape(note)
  return table.concat(entries, ',', math.max(1, #entries - HISTORY_LENGTH + 1))
end
local function bury(queue, t, raw, reason, error, now, limits)
  local id, n = id_of(raw), num(call('INCR', key('n')))
  local size = #raw
  local letter = table.concat({
    escape(id), escape(reason), escape(error), now, t[3], history_with(t, now, reason), size,
  }, ' ') .. '\0' .. raw
  call('ZADD', side(queue, 'dead'), n, n)
  call('HSET', side(queue, 'letters'), n, letter)
  call('ZADD', key('dead-ids'), 0, id .. '\0' .. n .. '\0' .. queue)
  call('INCRBY', side(queue, 'dead-bytes'), size)
  retain(queue, now, limits)
end

-- Giving back

-- To its old place, or until `due`; what awaits burial goes on awaiting it. In a queue that has
-- ended, what had begun becomes a dead letter and the rest is gone.
local function put_back(queue, t, raw, due, now, limits)
  if has_ended(queue) then
    if t[8] ~= '-' then
      bury(queue, t, raw, unescape(t[9]), 'WorkerLostError', now, limits)
    end
  elseif t[8] ~= '-' then
    call('ZADD', side(queue, 'lost'), place_of_lost(t), record(queue, text_of(t), raw))
  elseif due then
    delay(queue, due, record(queue, text_of(t), raw))
  else
    place(queue, t, raw)
  end
end
local function not_lost(t) t[8], t[9], t[10] = '-', '-', '-' end

local function requeue(queue, t, raw, note, due, now, limits)
  t[1] = num(call('INCR', key('n')))
  t[3] = tostring(tonumber(t[3]) + 1)
  t[4], t[5] = '1', '0'
  not_lost(t)
  t[7] = history_with(t, now, note == '' and 'delivered again' or note)
  if due or has_ended(queue) then
    put_back(queue, t, raw, due, now, limits)
  else
    to_the_back(queue, t, raw)
  end
end

-- Results: each {database, key, the number of the argument that is its value, milliseconds that it
-- is kept or 0 for ever}. As in Celery the channel that tells of a result has its key's name; a
-- SUCCESS stays as long as it is there. (What is there and can't be read here was written with
-- other settings than ours, and is replaced: whoever waits must get an answer.)
local function is_success(name)
  -- Celery and Umbel write the state first: a few bytes of a large record are enough.
  local head = call('GETRANGE', name, 0, 127)
  local state = string.match(head, '^%s*{%s*"status"%s*:%s*"([^"\\]*)"')
  if state or not string.find(head, '^%s*{') then return state == 'SUCCESS' end
  local fine, meta = pcall(cjson.decode, call('GET', name))
  return fine and type(meta) == 'table' and meta.status == 'SUCCESS'
end
local function keep(results)
  for _, each in ipairs(results) do
    local name, value, left = each[2], ARGV[each[3]], each[4]
    call('SELECT', each[1])
    if not is_success(name) then
      if left == 0 then
        call('SET', name, value)
      else
        call('SET', name, value, 'PX', left)
      end
      call('PUBLISH', name, value)
    end
    call('SELECT', DATABASE)
  end
end

-- Settlements: a lease alone is acknowledged; else
--   {lease, how, postings, dead, results, note, due, unknown, redelivered, refusal}
-- with how 0 ack, 1 reject, 2 requeue, 3 release; dead {reason, error}; refusal a sentence, where
-- a follow-up has no queue. Gives the leases that were lost and {lease, sentence} of the refused.
local function settle(owner, settlements, now, limits)
  local leases = key('leases:' .. owner)
  local lost, refused = {}, {}
  for _, each in ipairs(settlements) do
    if type(each) == 'number' then
      if call('HDEL', leases, num(each)) == 0 then lost[#lost + 1] = each end
    else
      local lease, how, due = num(each[1]), each[2], each[7]
      local rec = call('HGET', leases, lease)
      if not rec then
        lost[#lost + 1] = each[1]
      elseif each[10] then
        refused[#refused + 1] = { each[1], each[10] }
      else
        call('HDEL', leases, lease)
        if each[3] then store(each[3]) end
        if each[5] then keep(each[5]) end
        if how == 2 or how == 3 or each[4] then
          local queue, text, raw = parts(rec)
          local t = words(text)
          if how == 2 then
            requeue(queue, t, raw, each[6] or '', due, now, limits)
          elseif how == 3 then
            if each[9] then
              -- A burial that decides "run it again, uncounted" ends here. One that is only
              -- given back doesn't say so, and stays a burial.
              t[4] = '1'
              not_lost(t)
            end
            if each[8] and t[6] == '-' then t[6] = now end
            put_back(queue, t, raw, due, now, limits)
          else
            bury(queue, t, raw, each[4][1], each[4][2], now, limits)
          end
        end
      end
    end
  end
  return lost, refused
end
