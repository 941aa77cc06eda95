-- What leases, buckets and counters have in common. After common.lua.

-- Times of the callers' clocks say whether something is over; the server's own only clears it
-- away, and is given a minute more, since clocks differ.
local function keep(name, seconds)
  call('PEXPIRE', name, string.format('%.0f', math.min(seconds + 60, 2 ^ 40) * 1000))
end
