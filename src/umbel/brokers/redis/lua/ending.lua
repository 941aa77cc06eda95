-- Ends of owners, runs, and the queues that end with a run. After settling.lua.

-- End an owner: `running`, by lease {loss, detail}, is set aside for burial, and so is what lies
-- up to lease `begun` where `default` {loss, detail} says why; the rest goes back. A burier that
-- died does not replace what killed the task. How many leases there were.
local function end_owner(run, owner, running, default, begun, now, limits)
  local info = escape(call('HGET', key('run:' .. run), 'info') or '')
  local held = call('HGETALL', key('leases:' .. owner))
  local items = {}
  for i = 1, #held, 2 do
    local queue, text, raw = parts(held[i + 1])
    local t = words(text)
    local why = running[held[i]]
    if not why and default and tonumber(held[i]) <= begun then why = default end
    t[4] = '1'
    if why and t[8] == '-' then t[8], t[9], t[10] = escape(why[1]), escape(why[2]), info end
    items[#items + 1] = { queue, t, raw }
  end
  call('DEL', key('leases:' .. owner), key('owner:' .. owner))
  call('SREM', key('run:' .. run .. ':owners'), owner)
  -- The last first, so that each is the next to be taken when it is put back.
  table.sort(items, function(a, b) return rank(a[2]) > rank(b[2]) end)
  for _, item in ipairs(items) do put_back(item[1], item[2], item[3], nil, now, limits) end
  return #items
end

local function owners_of(run) return call('SMEMBERS', key('run:' .. run .. ':owners')) end

-- The queues in which something is leased, as a set.
local function leased_queues()
  local found = {}
  for _, run in ipairs(call('ZRANGE', key('runs'), 0, -1)) do
    for _, owner in ipairs(owners_of(run)) do
      for _, rec in ipairs(call('HVALS', key('leases:' .. owner))) do
        local queue = parts(rec)
        found[queue] = (found[queue] or 0) + 1
      end
    end
  end
  return found
end

local function forget_waiting(queue)
  for _, step in ipairs(SERVE) do call('DEL', list(queue, step)) end
  call('DEL', side(queue, 'due'))
  call('ZREM', key('due'), queue)
end

-- Drop what waits in queues that have ended, bury what had begun in them, and forget those that
-- hold nothing any more.
local function sweep(now, limits)
  local leased
  local queues = call('HGETALL', key('queues'))
  for i = 1, #queues, 2 do
    local queue = queues[i]
    if queues[i + 1] == 'x' then
      for _, rec in ipairs(call('ZRANGE', side(queue, 'lost'), 0, -1)) do
        local _, text, raw = parts(rec)
        local t = words(text)
        bury(queue, t, raw, unescape(t[9]), 'WorkerLostError', now, limits)
      end
      call('DEL', side(queue, 'lost'))
      forget_waiting(queue)
      retain(queue, now, limits)
      leased = leased or leased_queues()
      if call('ZCARD', side(queue, 'dead')) == 0 and not leased[queue] then
        call('HDEL', key('queues'), queue)
        call('INCR', key('routes'))
      end
    end
  end
end

-- Take bindings away, as members of the set; how many there were.
local function unbind(members)
  local gone = 0
  for _, member in ipairs(members) do
    if call('ZREM', key('bindings'), member) == 1 then
      gone = gone + 1
      local b = cjson.decode(member)
      if b[6] ~= '' then
        call('SREM', PREFIX .. '_kombu.binding.' .. b[1], b[6])
        call('SREM', PREFIX .. '_kombu.binding_permanent.' .. b[1], b[6])
      end
    end
  end
  if gone > 0 then call('INCR', key('routes')) end
  return gone
end

-- End the queues that are a run's own; it holds nothing any more.
local function end_queues(run, now, limits)
  local own, any = {}, false
  local queues = call('HGETALL', key('queues'))
  for i = 1, #queues, 2 do
    if queues[i + 1] == 'r' .. run then
      own[queues[i]] = true
      any = true
      call('HSET', key('queues'), queues[i], 'x')
    end
  end
  if not any then return end
  call('INCR', key('routes'))
  local members = {}
  for _, member in ipairs(call('ZRANGE', key('bindings'), 0, -1)) do
    if own[cjson.decode(member)[3]] then members[#members + 1] = member end
  end
  unbind(members)
  sweep(now, limits)
end

-- End a run that can't say any more what was running: what was begun counts as that.
local function end_run(run, detail, now, limits)
  local ended = 0
  for _, owner in ipairs(owners_of(run)) do
    local begun = tonumber(call('HGET', key('owner:' .. owner), 'begin') or 0)
    ended = ended + end_owner(run, owner, {}, { 'worker', detail }, begun, now, limits)
  end
  call('DEL', key('run:' .. run), key('run:' .. run .. ':owners'), key('run:' .. run .. ':gone'))
  call('ZREM', key('runs'), run)
  call('ZADD', key('ended'), now, run)
  end_queues(run, now, limits)
  return ended
end
