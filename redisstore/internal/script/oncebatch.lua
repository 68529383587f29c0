-- Steps under IDs for several keys, independently, as once.lua takes one. A step that fails
-- has written nothing, and the others go on. The caller sends the failed one again, alone, to
-- get its error.
--
-- KEYS: for each step its own, and the record's
-- ARGV: as those of once.lua, and then the first of them for each step
-- Returns for each step how many numbers its reply has, and these, or -2 if it failed.
local costs, shared = {}, #ARGV - #KEYS / 2
for i = 1, #KEYS / 2 do costs[i], ARGV[shared + i] = ARGV[shared + i], nil end
---------------------------------------- each
local all, n = {}, 0
for i = 1, #costs do
  local own = {costs[i]}
  for j = 2, #ARGV do own[j] = ARGV[j] end
  local done, reply = pcall(once, {KEYS[2 * i - 1], KEYS[2 * i]}, own)
  n = n + 1
  if not done or type(reply) == 'table' and reply.err then
    all[n] = -2
  elseif type(reply) == 'table' then
    all[n] = #reply
    for j = 1, #reply do all[n + j] = reply[j] end
    n = n + #reply
  else
    all[n], all[n + 1] = 1, reply
    n = n + 1
  end
end
return all
