-- Several requests, each of several steps. The steps are the same in each request, and no
-- request has a key twice. All steps of a request are decided before the first is written.
-- All or nothing, if one is denied, all are written as peeks; a step that overdraws denies
-- nothing. Independent steps always fit in this sense.
--
-- A request that fails has written nothing, and the others go on; the caller sends it
-- again, alone, to get its error.
--
-- KEYS: those of the steps, one request after the other
-- ARGV: 1, or 0 if no request can fit. For each step: the number of its arguments,
--       negative if it overdraws, and those.
-- Returns for each request 1 if it was taken or 0, and the replies of its steps as in
-- batch.lua; or -2 if it failed. If the time is in none of a step's windows, returns what
-- the step does.
local all, n, first, KEYS, ARGV = {}, 0, 0, KEYS, ARGV
local function add(m, reply)
  if type(reply) ~= 'table' then
    all[m + 1] = reply
    return m + 1
  end
  all[m + 1] = -3
  for i = 1, #reply do all[m + 1 + i] = reply[i] end
  return m + 1 + #reply
end
local function decide()
local at = 2
---------------------------------------- heads
while first < #KEYS do
local fits = ARGV[1] == '1'
---------------------------------------- decide
---------------------------------------- write
local m = n + 1
all[m] = fits and 1 or 0
---------------------------------------- reply
n, first = m, first + #steps
end
end
while true do
  local done, reply = pcall(decide)
  if done then return reply or all end
  if #KEYS == #steps then return type(reply) == 'table' and reply or redis.error_reply(reply) end
  n, first = n + 1, first + #steps
  all[n] = -2
end
