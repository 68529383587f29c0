package simserver_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/internal/simulation/simserver"
)

// A bubble is the time of a testing/synctest bubble. What happens holds the lock.
type bubble struct {
	sync.Mutex
	begin time.Time
}

func (b *bubble) Now() int64 { return int64(time.Since(b.begin)) }

func (b *bubble) After(d int64, do func()) {
	time.AfterFunc(time.Duration(d), func() {
		b.Lock()
		defer b.Unlock()
		do()
	})
}

// ends returns when calls end, in nanoseconds, that all arrive at once.
func ends(t *testing.T, newServer func(simserver.Timeline) simserver.Server, work ...int64) []int64 {
	ended := make([]int64, len(work))
	synctest.Test(t, func(*testing.T) {
		b := &bubble{begin: time.Now()}
		server := newServer(b)
		b.Lock()
		for i, w := range work {
			server.Serve(w, func() { ended[i] = b.Now() })
		}
		if _, isRemote := server.(simserver.Remote); (server.Busy() == 1) == isRemote {
			t.Errorf("%T has %g of its workers at work", server, server.Busy())
		}
		b.Unlock()
		time.Sleep(time.Hour)
		b.Lock()
		defer b.Unlock()
		if server.Busy() != 0 {
			t.Errorf("%T works after the last call", server)
		}
	})
	return ended
}

func TestServersWork(t *testing.T) {
	for name, c := range map[string]struct {
		server func(simserver.Timeline) simserver.Server
		work   []int64
		want   []int64
	}{
		"two workers": {
			func(t simserver.Timeline) simserver.Server { return &simserver.Pool{Timeline: t, Workers: 2} },
			[]int64{10, 20, 30, 40},
			[]int64{10, 20, 40, 60},
		},
		"clients that give up after 15": {
			func(t simserver.Timeline) simserver.Server {
				return &simserver.Pool{Timeline: t, Workers: 1, Patience: 15}
			},
			[]int64{10, 10, 10, 10},
			[]int64{10, 20, 20, 20},
		},
		"two shared processors": {
			func(t simserver.Timeline) simserver.Server { return &simserver.Shared{Timeline: t, Processors: 2} },
			[]int64{100, 100, 100, 100},
			[]int64{200, 200, 200, 200},
		},
		"latency": {
			func(t simserver.Timeline) simserver.Server { return simserver.Remote{Timeline: t} },
			[]int64{30, 10},
			[]int64{30, 10},
		},
		"a processor with time slices": {
			func(t simserver.Timeline) simserver.Server { return &simserver.Processor{Timeline: t} },
			[]int64{25e6, 5e6},
			[]int64{30e6, 15e6},
		},
	} {
		got := ends(t, c.server, c.work...)
		for i, want := range c.want {
			if got[i] != want {
				t.Errorf("%s: call %d ends at %d, want %d", name, i, got[i], want)
			}
		}
	}
}
