-- Returns when overrides were last used, in Unix seconds, or 0. ARGV are their ids.
local reply = {}
for i = 1, #ARGV do
  reply[i] = whole(number(get('~' .. ARGV[i])))
end
return reply
