#include "textflag.h"

// func prefetch(word unsafe.Pointer)
TEXT ·prefetch(SB), NOSPLIT, $0-8
	MOVQ word+0(FP), AX
	PREFETCHT0 (AX)
	RET
