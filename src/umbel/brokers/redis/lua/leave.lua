-- End a run.
-- ARGV: run, now, MessagePack of the limits of dead letters
if call('EXISTS', key('run:' .. ARGV[1])) == 1 then
  local detail = 'worker run ' .. ARGV[1] .. ' ended without settling this'
  end_run(ARGV[1], detail, ARGV[2], cmsgpack.unpack(ARGV[3]))
end
return 1
