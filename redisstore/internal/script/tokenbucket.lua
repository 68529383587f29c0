-- The token bucket; see tokenbucket.go. The bound is the highest debt allowed.
if bound then most = bound end
----------------------------------------
if after <= capacity or how == 'o' then return debt, charge, 0 end
return debt, charge, math.ceil((after - capacity) / unit)
