#include "textflag.h"

// func prefetch(word unsafe.Pointer)
TEXT ·prefetch(SB), NOSPLIT, $0-8
	MOVD word+0(FP), R0
	PRFM (R0), PLDL1KEEP
	RET
