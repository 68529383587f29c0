// Package httplimit puts rate limits on HTTP: it tells clients how they stand in
// the header fields that they understand, and why they were refused in bodies
// that programs can read.
package httplimit
