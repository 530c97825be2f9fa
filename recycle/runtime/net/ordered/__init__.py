"""A transport over communicators that know nothing but order, are waited for by looking, and are given up by abort."""
