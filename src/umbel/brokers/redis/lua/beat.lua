-- Renew a run's life; reclaim what dead runs held; drop what is over its time.
-- ARGV: run, now, heartbeats after which silence is an outage, seconds that an ended run is
--       remembered, seconds that a revocation is kept, seconds between two looks for those,
--       MessagePack of the limits of dead letters
-- Returns {version of revocations} for a run that isn't alive, else {version, heartbeat, peers as
-- {run, info, seen}, reclaimed, seconds until the first death or '', old revocations to look for}
local run, now, limits = ARGV[1], ARGV[2], cmsgpack.unpack(ARGV[7])
local at = tonumber(now)
local revocations = tonumber(call('GET', key('revocations:version')) or 0)
if call('EXISTS', key('run:' .. run)) == 0 then return { revocations } end

-- The first thing written takes memory away, so that a server at its limit lets the rest happen.
call('ZREMRANGEBYSCORE', key('ended'), '-inf', num(at - tonumber(ARGV[4])))

local runs = {}
for _, name in ipairs(call('ZRANGE', key('runs'), 0, -1)) do
  local known = call('HMGET', key('run:' .. name), 'seen', 'lease', 'info')
  runs[#runs + 1] =
    { name = name, seen = known[1], lease = tonumber(known[2]), info = known[3] }
end
local function heartbeat()
  local shortest = math.huge
  for _, each in ipairs(runs) do shortest = math.min(shortest, each.lease) end
  return shortest / 3
end

local before = tonumber(call('GET', key('beat')))
local outage = not before or at < before or at - before > tonumber(ARGV[3]) * heartbeat()
for _, each in ipairs(runs) do
  if outage or each.name == run then
    each.seen = now
    call('HSET', key('run:' .. each.name), 'seen', now)
  end
end
call('SET', key('beat'), now)

local reclaimed, peers, alive, death = 0, {}, {}, nil
for _, each in ipairs(runs) do
  local silence = at - tonumber(each.seen)
  if silence > each.lease then
    local detail =
      string.format('worker run %s gave no sign of life for %.0f s', each.name, silence)
    reclaimed = reclaimed + end_run(each.name, detail, now, limits)
  else
    alive[#alive + 1] = each
    if each.name ~= run then
      peers[#peers + 1] = { each.name, each.info, each.seen }
      death = math.min(death or math.huge, each.lease - silence)
    end
  end
end
runs = alive

sweep(now, limits)
for _, queue in ipairs(call('HKEYS', key('queues'))) do retain(queue, now, limits) end

local old = {}
local oldest = call('ZRANGE', key('revocations'), 0, 0)[1]
local limit = at - tonumber(ARGV[5])
if oldest and tonumber(string.match(oldest, '^[^%z]*%z([^%z]*)')) < limit then
  local looked = tonumber(call('GET', key('revocations:looked')) or '-inf')
  if not looked or at < looked or at - looked >= tonumber(ARGV[6]) then
    call('SET', key('revocations:looked'), now)
    for _, entry in ipairs(call('ZRANGE', key('revocations'), 0, -1)) do
      if tonumber(string.match(entry, '^[^%z]*%z([^%z]*)')) < limit then old[#old + 1] = entry end
    end
  end
end
return { revocations, num(heartbeat()), peers, reclaimed, death and num(death) or '', old }
