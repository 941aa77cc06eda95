-- Store what a stranger has published to a fanout exchange, once in each queue.
-- ARGV: its name, milliseconds for which that is remembered, step, envelope, queues
-- Returns in how many it was stored.
local postings = {}
for i = 5, #ARGV do
  if call('SET', key('heard:' .. ARGV[i] .. ':' .. ARGV[1]), '', 'NX', 'PX', ARGV[2]) then
    postings[#postings + 1] = { ARGV[i], ARGV[3], '', 4 }
  end
end
store(postings)
return #postings
