-- The same step for several keys, each by itself. One that fails has written
-- nothing, and the others go on; the caller asks about it again, alone, and is told
-- what is wrong.
--
-- Returns what each step returns, in turn: a number, or -3 and a list of them, or
-- -2 if the step failed.
local all, n = {}, 0
for i = 1, #KEYS do
  local done, reply = pcall(step, KEYS[i])
  if not done or type(reply) == 'table' and reply.err then reply = -2 end
  n = n + 1
  if type(reply) == 'table' then
    all[n] = -3
    for j = 1, #reply do all[n + j] = reply[j] end
    n = n + #reply
  else
    all[n] = reply
  end
end
return all
