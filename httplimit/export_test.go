package httplimit

// ServiceLimits returns what is left, and for how many seconds, of each item of a
// RateLimit field.
func ServiceLimits(lines ...string) (items [][2]int64, ok bool) {
	limits, ok := parseServiceLimits(lines)
	for _, l := range limits {
		items = append(items, [2]int64{l.left, l.window})
	}
	return items, ok
}
