-- How many messages of each queue are where.
-- ARGV: now
-- Returns of each queue {name, ready, delayed, leased, lost, dead}
promote(ARGV[1])
local leased, stats = leased_queues(), {}
for _, queue in ipairs(call('HKEYS', key('queues'))) do
  local ready = 0
  for _, step in ipairs(SERVE) do ready = ready + call('LLEN', list(queue, step)) end
  stats[#stats + 1] = {
    queue, ready, call('ZCARD', side(queue, 'due')), leased[queue] or 0,
    call('ZCARD', side(queue, 'lost')), call('ZCARD', side(queue, 'dead')),
  }
end
return stats
