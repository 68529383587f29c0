package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"testing"
)

var (
	testKinds  = Kinds{{Words: 2}, {Words: 3, HasBlock: true}}
	testHeader = Header{CustomClock: true, ShardBits: 1, Tick: 1000, Mono: 5, Wall: 7, Key: [16]byte{1, 2, 3}}

	testEntries = []Entry{
		{Shard: 0, Kind: 0, Words: []uint64{1, math.MaxUint64}, Block: nil},
		{Shard: 0, Kind: 1, Words: []uint64{2, 3, 4}, Block: []int64{-1, 0, math.MaxInt64}},
		{Shard: 2, Kind: 1, Words: []uint64{5, 6, 7}, Block: nil},
	}
)

func write(w io.Writer) error {
	s := NewWriter(w, testHeader, testKinds)
	for shard := range 3 {
		s.NextShard()
		for _, e := range testEntries {
			if e.Shard == shard {
				s.Add(e.Kind, e.Words, e.Block)
			}
		}
	}
	return s.Close()
}

func written(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func read(b []byte) (h Header, entries []Entry, err error) {
	r, h, err := NewReader(bytes.NewReader(b), testKinds)
	if err != nil {
		return h, nil, err
	}
	var e Entry
	for err = r.Next(&e); err == nil; err = r.Next(&e) {
		entry := e
		entry.Words, entry.Block = slices.Clone(e.Words), append([]int64(nil), e.Block...)
		entries = append(entries, entry)
	}
	return h, entries, err
}

func TestReaderReturnsWhatWasWritten(t *testing.T) {
	h, entries, err := read(written(t))
	if !errors.Is(err, io.EOF) || h != testHeader || !reflect.DeepEqual(entries, testEntries) {
		t.Errorf("got %+v, %+v, %v, want %+v, %+v, EOF", h, entries, err, testHeader, testEntries)
	}
}

func TestReaderRefusesDamage(t *testing.T) {
	saved := written(t)
	refused := func(name string, damaged []byte) {
		t.Helper()
		if _, _, err := read(damaged); !errors.Is(err, ErrBad) {
			t.Errorf("%s: %v, want ErrBad", name, err)
		}
	}
	refused("text", bytes.Repeat([]byte("not a snapshot "), 100))
	refused("one byte more", append(bytes.Clone(saved), 0))
	refused("twice", append(bytes.Clone(saved), saved...))
	for cut := range saved {
		refused(fmt.Sprint("cut at ", cut), saved[:cut])
	}
	for at := range 8 * len(saved) {
		damaged := bytes.Clone(saved)
		damaged[at/8] ^= 1 << (at % 8)
		refused(fmt.Sprint("bit ", at), damaged)
	}
}

// What the checksums cannot show, because they are right, is refused too.
func TestReaderRefusesWhatNoStoreWrites(t *testing.T) {
	for name, add := range map[string]func(w *Writer){
		"an entry before the first shard": func(w *Writer) { w.Add(0, []uint64{1, 2}, nil) },
		"too few shards":                  func(w *Writer) { w.NextShard() },
		"too many shards": func(w *Writer) {
			for range 4 {
				w.NextShard()
			}
		},
		"an unknown kind": func(w *Writer) {
			w.NextShard()
			w.copy.WriteByte(byte(len(testKinds)))
		},
		"a block that is too long": func(w *Writer) {
			w.NextShard()
			w.Add(1, []uint64{1, 2, 3}, make([]int64, maxBlockWords+1))
		},
	} {
		var b bytes.Buffer
		w := NewWriter(&b, testHeader, testKinds)
		add(w)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := read(b.Bytes()); !errors.Is(err, ErrBad) {
			t.Errorf("%s: %v, want ErrBad", name, err)
		}
	}
	for _, h := range []Header{{ShardBits: MaxShardBits + 1, Tick: 1}, {}, {Tick: 1, Wall: -1}, {Tick: 1, Mono: math.MaxInt64}} {
		var b bytes.Buffer
		_ = NewWriter(&b, h, testKinds).Close()
		if _, _, err := read(b.Bytes()); !errors.Is(err, ErrBad) {
			t.Errorf("%+v: %v, want ErrBad", h, err)
		}
	}
}

type fullDisk struct{ room int }

var errFull = errors.New("no space left on device")

func (d *fullDisk) Write(b []byte) (int, error) {
	if d.room -= len(b); d.room < 0 {
		return 0, errFull
	}
	return len(b), nil
}

func TestWriterReportsFirstError(t *testing.T) {
	for _, room := range []int{0, 10, 1000, 100_000} {
		w := NewWriter(&fullDisk{room}, testHeader, testKinds)
		for range 5000 {
			w.NextShard()
			w.Add(1, []uint64{1, 2, 3}, []int64{1, 2, 3, 4, 5})
		}
		if err := w.Close(); !errors.Is(err, errFull) {
			t.Errorf("a disk of %d bytes: %v, want errFull", room, err)
		}
	}
}

// An entry is decoded only if it is as long as it says.
func TestKindDecodesWhatItAppended(t *testing.T) {
	for _, e := range testEntries {
		k := testKinds[e.Kind]
		b := k.Append(nil, e.Words, e.Block)
		words, block, ok := k.Decode(b)
		if !ok || !slices.Equal(words, e.Words) || !slices.Equal(block, e.Block) {
			t.Errorf("%+v became %v, %v, %v", e, words, block, ok)
		}
		for n := range len(b) + 16 {
			other := append(bytes.Clone(b), make([]byte, 16)...)[:n]
			if _, _, ok := k.Decode(other); ok && n != len(b) {
				t.Errorf("%+v: decoded from %d of %d bytes", e, n, len(b))
			}
		}
	}
}
