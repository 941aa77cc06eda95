-- Append to the log of revocations.
-- ARGV: now; then of each entry three: terminate (0 or 1), signal, task id
for i = 2, #ARGV, 3 do
  local n = num(call('INCR', key('revocations:version')))
  local entry = table.concat({ n, ARGV[1], ARGV[i], ARGV[i + 1], ARGV[i + 2] }, '\0')
  call('ZADD', key('revocations'), n, entry)
end
return 1
