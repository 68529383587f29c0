-- Several requests, each of several steps. The steps are the same in each request, and no
-- request has a key twice. Requests with the same arguments are a section; there may be several.
-- All steps of a request are decided before the first is written.
-- All or nothing, if one is denied, all are written as peeks; a step that overdraws denies
-- nothing. Independent steps always fit in this sense.
--
-- A request that fails has written nothing, and the others go on; the caller sends it
-- again, alone, to get its error. If the time is in none of a step's windows, its section and
-- those behind it fail.
--
-- KEYS: those of the steps, one request after the other
-- ARGV: for each section the number of its requests, or empty for all that are left; 1, or 0 if
--       none of them can fit; and for each step the number of its arguments, negative if it
--       overdraws, and those.
--
-- The keys of a request are put before all others, in the place of those of the first.
-- Returns for each request 1 if it was taken or 0, and the replies of its steps as in
-- batch.lua; or -2 if it failed. A request alone returns what the step does if the time is in
-- none of its windows.
local all, n, first, section, last, keys = {}, 0, 0, 1, nil, KEYS
local function add(m, list)
  all[m + 1] = -3
  for i = 1, #list do all[m + 1 + i] = list[i] end
  return m + 1 + #list
end
local function decide()
local redis, all, keys, KEYS, total = redis, all, keys, KEYS, #KEYS -- closer than those of the script
while first < total do
local at, fit = section + 2, ARGV[section + 1] == '1'
last = last or ARGV[section] == '' and total or first + ARGV[section] * #steps -- a failed request does not end a section
---------------------------------------- heads
while first < last do
local from, fits = first, fit
---------------------------------------- decide
---------------------------------------- write
local m = n + 1
all[m] = fits and 1 or 0
---------------------------------------- reply
n, first = m, from + #steps
end
section, last = at, nil
end
end
while true do
  local done, reply = pcall(decide)
  if done then return reply or all end
  if #keys == #steps then return type(reply) == 'table' and reply or redis.error_reply(reply) end
  n, first = n + 1, first + #steps
  all[n] = -2
end
