// Package slab allocates blocks of words, for states that are too long for a slot
// of a hash table.
package slab

import (
	"math/bits"

	"github.com/penstock-io/penstock/internal/quota"
)

// A Slab allocates blocks of words. It cuts blocks of one size from pages, so the
// garbage collector sees one object without pointers for many blocks. A page is
// released when its last block is freed.
type Slab struct {
	pages    []page
	released []int32        // indexes of pages without words, for reuse
	bytes    *quota.Quota   // of pages; nil if not bounded
	open     [classes]int32 // by size class: the index of a page with a free block, plus one
}

// A page is an array of blocks of one size.
type page struct {
	words      []int64
	size       int32 // words in a block
	live       int32 // blocks in use
	cut        int32 // blocks that have been used at least once
	free       int32 // index of the first free block, plus one; its first word links to the next
	next, prev int32 // neighbours among the open pages of this size, plus one
}

// A Block identifies a block by its page and its index there. It is never 0.
type Block uint64

// pageWords is the number of words in a page, unless one block needs more.
const pageWords = 2048

// SetQuota makes the slab acquire the bytes of its pages from a quota, which other
// slabs may share.
func (s *Slab) SetQuota(bytes *quota.Quota) { s.bytes = bytes }

// Alloc returns a block of at least n words, all zero. It returns 0 if that needs
// another page and the quota is used up.
func (s *Slab) Alloc(n int) Block {
	class := sizeClass(n)
	if s.open[class] == 0 && !s.addPage(class) {
		return 0
	}
	id := s.open[class] - 1
	p := &s.pages[id]
	i := p.takeBlock()
	if p.full() {
		s.unlink(id, class)
	}
	clear(p.block(i))
	return Block(id+1)<<32 | Block(i)
}

// Words returns the words of a block.
func (s *Slab) Words(b Block) []int64 { return s.pages[b>>32-1].block(int32(uint32(b))) }

// Size returns the number of words of a block.
func (s *Slab) Size(b Block) int { return int(s.pages[b>>32-1].size) }

// Free frees a block.
func (s *Slab) Free(b Block) {
	id, i := int32(b>>32)-1, int32(uint32(b))
	p := &s.pages[id]
	class := sizeClass(int(p.size))
	if p.full() {
		s.link(id, class)
	}
	p.block(i)[0] = int64(p.free)
	p.free = i + 1
	if p.live--; p.live == 0 {
		s.removePage(id, class)
	}
}

func (s *Slab) addPage(class int) bool {
	size := classSize(class)
	words := max(pageWords/size, 1) * size
	if s.bytes != nil && !s.bytes.Acquire(int64(words)*8) {
		return false
	}
	id := int32(len(s.pages))
	if n := len(s.released); n > 0 {
		id, s.released = s.released[n-1], s.released[:n-1]
	} else {
		s.pages = append(s.pages, page{})
	}
	s.pages[id] = page{words: make([]int64, words), size: int32(size)}
	s.link(id, class)
	return true
}

func (s *Slab) removePage(id int32, class int) {
	s.unlink(id, class)
	if s.bytes != nil {
		s.bytes.Release(int64(len(s.pages[id].words)) * 8)
	}
	s.pages[id] = page{}
	s.released = append(s.released, id)
}

// link adds a page to the front of the open pages of its size.
func (s *Slab) link(id int32, class int) {
	first := s.open[class]
	s.pages[id].next, s.pages[id].prev = first, 0
	if first != 0 {
		s.pages[first-1].prev = id + 1
	}
	s.open[class] = id + 1
}

// unlink removes a page from the open pages of its size.
func (s *Slab) unlink(id int32, class int) {
	p := &s.pages[id]
	if p.next != 0 {
		s.pages[p.next-1].prev = p.prev
	}
	if p.prev != 0 {
		s.pages[p.prev-1].next = p.next
	} else {
		s.open[class] = p.next
	}
}

func (p *page) block(i int32) []int64 {
	at := int(i) * int(p.size)
	return p.words[at : at+int(p.size) : at+int(p.size)]
}

func (p *page) full() bool { return int(p.live) == len(p.words)/int(p.size) }

// takeBlock allocates a block and returns its index.
func (p *page) takeBlock() int32 {
	p.live++
	if p.free == 0 {
		p.cut++
		return p.cut - 1
	}
	i := p.free - 1
	p.free = int32(p.block(i)[0])
	return i
}

// classes is the number of size classes. Each size is at most an eighth larger
// than the one before: 8, 9 … 16, 18 … 32, 36 …
const classes = 128

// sizeClass returns the smallest class whose blocks have at least n words.
func sizeClass(n int) int {
	n = max(n, 8)
	shift := max(bits.Len(uint(n-1))-4, 0)
	steps := (n - 1) >> shift // 7 … 15
	return shift*8 + steps - 7
}

// classSize returns the number of words in the blocks of a class.
func classSize(class int) int {
	shift, step := class/8, class%8
	return (step + 8) << shift
}
