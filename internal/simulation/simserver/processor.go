package simserver

// A Processor is one processor with a run queue, as a process of Go has it: calls compute in turns
// of a time slice. A call waits for its turn when it arrives, before it reaches the limiter
// ([Processor.Accept]), and again after that, because it has waited for something else or yields to
// others. If calls keep the processor, they only compute, and those that the limiter admits go on in
// the turn of whatever reached it or left it.
type Processor struct {
	Timeline
	Keeps  bool
	Waited func(wait int64) // is told how long each task has waited for its turn; nil for none

	queue   []task
	running bool
	ending  bool  // whether a task has just been done, in a turn that is not over
	heir    *task // that goes on in this turn
}

type task struct {
	left int64
	done func()
	from int64 // when it began to wait
}

const (
	timeSlice  = 10e6
	acceptWork = 50e3 // to read a request
)

// Accept calls a function when a call that arrives has got its first turn.
func (p *Processor) Accept(f func()) { p.Serve(acceptWork, f) }

// Serve implements [Server].
func (p *Processor) Serve(work int64, done func()) {
	t := task{work, done, p.Now()}
	if p.Keeps && p.ending && p.heir == nil {
		p.heir = &t
		return
	}
	p.queue = append(p.queue, t)
	p.next()
}

func (p *Processor) next() {
	if p.running || len(p.queue) == 0 {
		return
	}
	t := p.queue[0]
	p.queue, p.running = p.queue[1:], true
	if p.Waited != nil {
		p.Waited(p.Now() - t.from)
	}
	p.compute(t, timeSlice)
}

// compute gives a task the processor for the rest of a turn.
func (p *Processor) compute(t task, rest int64) {
	took := min(t.left, rest)
	p.After(took, func() {
		t.left -= took
		if p.finish(t); p.heir != nil {
			heir := *p.heir
			p.heir = nil
			p.compute(heir, rest-took)
			return
		}
		p.running = false
		p.next()
	})
}

func (p *Processor) finish(t task) {
	if t.left > 0 {
		t.from = p.Now()
		p.queue = append(p.queue, t)
		return
	}
	p.ending = true
	t.done()
	p.ending = false
}

// Busy implements [Server].
func (p *Processor) Busy() float64 {
	if p.running {
		return 1
	}
	return 0
}
