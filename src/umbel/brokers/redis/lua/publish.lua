-- Store postings, all or none.
-- ARGV: the version of the routes that they were routed by; then of each posting four: queue,
--       step, due time (empty: now), envelope; channels and -1 in place of queue and step, or -2
--       where it must be heard, since no queue has it
-- Returns 1, 0 where the routes are others by now and nothing was done, or minus the number of the
--       posting that nobody heard, and then nothing was stored.
if version() ~= ARGV[1] then return 0 end
local postings = {}
for i = 2, #ARGV, 4 do
  if ARGV[i + 1] ~= '-2' then
    postings[#postings + 1] = { ARGV[i], ARGV[i + 1], ARGV[i + 2], i + 3 }
  elseif tell(ARGV[i], ARGV[i + 3]) == 0 then
    return -(i + 2) / 4
  end
end
store(postings)
return 1
