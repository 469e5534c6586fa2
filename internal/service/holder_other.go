//go:build !linux

package service

func holder(int) string { return "" }
