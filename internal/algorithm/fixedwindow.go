package algorithm

// The fixed window.
//
// Idea: count up to Count, and start at zero when the window ends.
//
// State: the units used, and when the window ends. A window without used units has no
// state.
//
// The caller chooses where windows begin: at the key's first request, on the clock,
// or by a calendar. It passes the window that a request at this instant would open. A
// window that is already open keeps its end.
//
// Bound: at most Count per window, so at most 2·Count in an interval as long as the
// shortest window: Count just before an edge, and Count just after it. Windows that
// begin at the first request admit one less, because that request is early. By the
// calendar, a longer interval may touch three windows, such as thirty days around a
// February. Each time the clock steps back over an edge, aligned windows may admit
// Count once more: the window that lies in the future is cut to one window's length
// from now, so it ends within another.
//
// Overdrafts: a request with Overdraw is charged even if it does not fit, up to
// Overdraft units beyond Count. Requests are denied until the window ends, as they are
// when it is used up: the next window begins without a debt.

// A Window is the window that a request at this instant would open.
type Window struct {
	End    int64
	Length int64
}

// Aligned returns the window that contains now. Windows have one length, and one
// of them begins at offset.
func Aligned(now, length, offset int64) Window {
	into := (now - offset) % length
	if into < 0 {
		into += length
	}
	return Window{End: now - into + length, Length: length}
}

// A Counter is the state of a fixed window.
type Counter struct {
	Used int64 // may exceed Count
	End  int64
}

// A FixedWindow decides on a [Counter].
type FixedWindow struct {
	Count     int64
	Overdraft int64 // units beyond Count that a request may overdraw
	Tick      int64
}

// Decide returns the new counter and the outcome. Only a charge replaces an ended
// window, so that it counts again if the clock steps back into it.
func (f *FixedWindow) Decide(s Counter, now int64, w Window, req Request) (Counter, Outcome) {
	over := s.Used == 0 || s.End <= now
	open := f.normalize(s, now, w)
	out := Outcome{Allowed: true}
	switch {
	case req.Cost > 0:
		out = f.take(open, now, &req)
	case req.Cost < 0:
		out = req.refund(open.Used)
	}
	if over && out.Granted == 0 && req.Cost != Reset {
		return s, out
	}
	if open.Used += out.Granted; open.Used == 0 {
		return Counter{}, out
	}
	return open, out
}

// Spend is Decide for the most common case: a cost that is left in an open window of that
// length. If it returns false, nothing has changed: call Decide.
func (f *FixedWindow) Spend(s *Counter, now, length, cost int64) (bal Balance, ok bool) {
	if s.Used == 0 || s.End <= now || s.End-now > length || cost > f.Count-s.Used {
		return bal, false
	}
	s.Used += cost
	return Balance{Remaining: f.Count - s.Used, ResetAfter: RoundUp(s.End-now, f.Tick)}, true
}

// Balance returns the state of a counter that Decide returned.
func (f *FixedWindow) Balance(s Counter, now int64) Balance {
	if s.Used == 0 || s.End <= now {
		return Balance{Remaining: f.Count}
	}
	return Balance{Remaining: max(f.Count-s.Used, 0), ResetAfter: RoundUp(s.End-now, f.Tick)}
}

// normalize returns the counter of the current window, which ends no later than the
// clock allows.
func (f *FixedWindow) normalize(s Counter, now int64, w Window) Counter {
	if s.Used == 0 || s.End <= now {
		return Counter{End: w.End}
	}
	return Counter{Used: s.Used, End: min(s.End, now+w.Length)}
}

func (f *FixedWindow) take(s Counter, now int64, req *Request) Outcome {
	free := f.Count - s.Used
	if req.Overdraw {
		return req.overdraw(free + f.Overdraft)
	}
	o, missing := req.take(f.Count, free)
	if missing > 0 {
		o.RetryAfter = RoundUp(s.End-now, f.Tick)
	}
	return o
}

// RefundDue refunds units of a grant, if they were charged to the window that ends at
// due.
func (f *FixedWindow) RefundDue(s Counter, now int64, w Window, units, due int64) (Counter, Outcome) {
	if f.normalize(s, now, w).End != due {
		units = 0
	}
	return f.Decide(s, now, w, Request{Cost: -units})
}
