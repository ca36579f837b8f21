//go:build !cgo

package needscgo

// The compiler's message is the name.
var _ = SQLITE_IS_WRITTEN_IN_C__INSTALL_A_C_COMPILER_SUCH_AS_GCC_AND_BUILD_WITH_CGO_ENABLED_1
