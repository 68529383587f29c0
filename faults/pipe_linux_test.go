package faults

import (
	"os"
	"syscall"
	"unsafe"
)

// smallPipe returns a pipe that is full after a page.
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

// buffered returns how many bytes wait in a pipe.
func buffered(reader *os.File) int {
	n := int32(0)
	const howMany = 0x541b // FIONREAD
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, reader.Fd(), howMany, uintptr(unsafe.Pointer(&n))); errno != 0 {
		return 0
	}
	return int(n)
}
