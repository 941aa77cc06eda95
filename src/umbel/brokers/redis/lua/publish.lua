-- Store postings, all or none.
-- ARGV: the version of the routes that they were routed by; then of each posting four: queue,
--       step, due time (empty: now), envelope
-- Returns 1, or 0 where the routes are others by now and nothing was done.
if version() ~= ARGV[1] then return 0 end
local postings = {}
for i = 2, #ARGV, 4 do
  postings[#postings + 1] = { ARGV[i], ARGV[i + 1], ARGV[i + 2], i + 3 }
end
store(postings)
return 1
