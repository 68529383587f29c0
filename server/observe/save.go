package observe

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/penstock-io/penstock/server/internal/history"
)

// MaxHistoryBytes is more than the history of an observer can be.
const MaxHistoryBytes = 64 << 20

// historyMagic begins a saved history, with its version.
const historyMagic = "penstock history 2\n"

// ErrBadHistory means that a saved history is damaged, or of another version.
var ErrBadHistory = errors.New("observe: unreadable history")

// SaveHistory writes the history, without the counters and without top keys.
func (o *Observer) SaveHistory(w io.Writer) error {
	file := bytes.NewBufferString(historyMagic)
	compressed, _ := gzip.NewWriterLevel(file, gzip.BestSpeed) // no error: the level exists
	if err := errors.Join(o.rules.Save(compressed), o.latency.Save(compressed), compressed.Close()); err != nil {
		return err
	}
	sum := crc32.ChecksumIEEE(file.Bytes())
	_, err := w.Write(binary.BigEndian.AppendUint32(file.Bytes(), sum))
	return err
}

// LoadHistory restores what SaveHistory has written, before the first Tick. After an error
// the history is empty.
func (o *Observer) LoadHistory(saved []byte) error {
	content, sum := saved[:max(len(saved)-crc32.Size, 0)], saved[max(len(saved)-crc32.Size, 0):]
	if len(sum) < crc32.Size || crc32.ChecksumIEEE(content) != binary.BigEndian.Uint32(sum) {
		return fmt.Errorf("%w: wrong checksum", ErrBadHistory)
	}
	rest, ok := bytes.CutPrefix(content, []byte(historyMagic))
	if !ok {
		return fmt.Errorf("%w: another version", ErrBadHistory)
	}
	compressed, err := gzip.NewReader(bytes.NewReader(rest))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBadHistory, err)
	}
	r := bufio.NewReader(io.LimitReader(compressed, MaxHistoryBytes))
	counts, latency := history.New(columns), history.New(len(o.options.LatencyBounds)+1)
	if err := errors.Join(counts.Load(r), latency.Load(r)); err != nil {
		return fmt.Errorf("%w: %w", ErrBadHistory, err)
	}
	o.rules, o.latency = counts, latency
	o.begin()
	return nil
}
