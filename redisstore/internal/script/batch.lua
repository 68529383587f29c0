-- The same step for several keys, independently. A step gets the number of its key besides. A step that fails has written
-- nothing, and the others go on. The caller sends the failed one again, alone, to get
-- its error.
--
-- Returns the replies of the steps one after the other: a number, or -3 and a list of
-- numbers, or -2 if the step failed.
local all, n, key = {}, 0, {''}
for i = 1, #KEYS do
  key[1] = KEYS[i]
  local done, reply = pcall(step, key, i)
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
