package faults

import (
	"os"
	"syscall"
	"unsafe"
)

// smallPipe returns a pipe that holds one page.
func smallPipe() (reader, writer *os.File, err error) {
	if reader, writer, err = os.Pipe(); err != nil {
		return nil, nil, err
	}
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, writer.Fd(), syscall.F_SETPIPE_SZ, pipeSize); errno != 0 {
		return nil, nil, errno
	}
	return reader, writer, nil
}

const pipeSize = 4096

// bytesBuffered returns how many bytes are in a pipe.
func bytesBuffered(reader *os.File) int {
	n := int32(0)
	const fionread = 0x541b
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, reader.Fd(), fionread, uintptr(unsafe.Pointer(&n))); errno != 0 {
		return 0
	}
	return int(n)
}
