package penstock

import (
	"math/bits"
	"sync/atomic"
)

// blocks hands out runs of words to the states that do not fit into a slot:
// logs and rings. Runs of one size are cut from pages, so the garbage collector
// sees one object without pointers for many states, and a page goes back to it
// when its last run is given back.
//
// A run is named by its page and its place there.
type blocks struct {
	pages  []page
	vacant []int32       // pages that have no words
	held   *atomic.Int64 // bytes in all pages, of all shards; nil means uncounted
	most   int64         // bytes that may be held
	open   [sizes]int32  // by size: a page with a free run, plus one
}

// A page is an array of runs of one size.
type page struct {
	words      []int64
	size       int32 // words in a run
	live       int32 // runs in use
	cut        int32 // runs that have ever been in use
	free       int32 // the first free run, plus one; its first word says which is next
	next, prev int32 // neighbours among the open pages of this size, plus one
}

// A run names a run of words; no run is 0.
type run uint64

// pageWords is how many words a page has, unless one run needs more.
const pageWords = 2048

// alloc returns a run of at least n words, all zero, or no run when there is no
// room for another page.
func (b *blocks) alloc(n int) run {
	class := sizeClass(n)
	if b.open[class] == 0 && !b.addPage(class) {
		return 0
	}
	id := b.open[class] - 1
	p := &b.pages[id]
	i := p.cutNext()
	if p.full() {
		b.unlink(id, class)
	}
	clear(p.run(i))
	return run(id+1)<<32 | run(i)
}

// words returns the words of a run.
func (b *blocks) words(r run) []int64 {
	return b.pages[r>>32-1].run(int32(uint32(r)))
}

// size returns how many words a run has.
func (b *blocks) size(r run) int { return int(b.pages[r>>32-1].size) }

// free takes a run back.
func (b *blocks) free(r run) {
	id, i := int32(r>>32)-1, int32(uint32(r))
	p := &b.pages[id]
	class := sizeClass(int(p.size))
	if p.full() {
		b.link(id, class)
	}
	p.run(i)[0] = int64(p.free)
	p.free = i + 1
	if p.live--; p.live == 0 {
		b.removePage(id, class)
	}
}

func (b *blocks) addPage(class int) bool {
	size := classSize(class)
	words := max(pageWords/size, 1) * size
	if b.held != nil && b.held.Add(int64(words)*8) > b.most {
		b.held.Add(-int64(words) * 8)
		return false
	}
	id := int32(len(b.pages))
	if n := len(b.vacant); n > 0 {
		id, b.vacant = b.vacant[n-1], b.vacant[:n-1]
	} else {
		b.pages = append(b.pages, page{})
	}
	b.pages[id] = page{words: make([]int64, words), size: int32(size)}
	b.link(id, class)
	return true
}

func (b *blocks) removePage(id int32, class int) {
	b.unlink(id, class)
	if b.held != nil {
		b.held.Add(-int64(len(b.pages[id].words)) * 8)
	}
	b.pages[id] = page{}
	b.vacant = append(b.vacant, id)
}

// link puts a page in front of the open pages of its size.
func (b *blocks) link(id int32, class int) {
	first := b.open[class]
	b.pages[id].next, b.pages[id].prev = first, 0
	if first != 0 {
		b.pages[first-1].prev = id + 1
	}
	b.open[class] = id + 1
}

// unlink takes a page out of the open pages of its size.
func (b *blocks) unlink(id int32, class int) {
	p := &b.pages[id]
	if p.next != 0 {
		b.pages[p.next-1].prev = p.prev
	}
	if p.prev != 0 {
		b.pages[p.prev-1].next = p.next
	} else {
		b.open[class] = p.next
	}
}

func (p *page) run(i int32) []int64 {
	at := int(i) * int(p.size)
	return p.words[at : at+int(p.size) : at+int(p.size)]
}

func (p *page) full() bool {
	return int(p.live) == len(p.words)/int(p.size)
}

// cutNext puts one more run into use and returns its place.
func (p *page) cutNext() int32 {
	p.live++
	if p.free == 0 {
		p.cut++
		return p.cut - 1
	}
	i := p.free - 1
	p.free = int32(p.run(i)[0])
	return i
}

// Runs come in sizes that are at most an eighth apart: 8, 9 … 16, 18 … 32, 36 …
const sizes = 128

// sizeClass returns the smallest class whose runs have n words.
func sizeClass(n int) int {
	n = max(n, 8)
	shift := max(bits.Len(uint(n-1))-4, 0)
	steps := (n - 1) >> shift // 7 … 15
	return shift*8 + steps - 7
}

// classSize returns how many words the runs of a class have.
func classSize(class int) int {
	shift, step := class/8, class%8
	return (step + 8) << shift
}
