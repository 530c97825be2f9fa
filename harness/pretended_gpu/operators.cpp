// What CUDA's kernels would compute, computed by the CPU's kernels in the same memory, in the order of the launches.
//
// Torch's own code for CUDA stays around it: its allocators, streams, generators, autograd's threads for devices. Every
// operator of aten that has a kernel for both is taken over; tensors of different devices are refused as torch refuses
// them. Random numbers come of the device's generator: its seed and how far it is give the CPU's seed.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <mutex>
#include <set>
#include <string>

extern "C" void pretended_first_launch(void);
extern "C" void pretended_launch(cudaStream_t stream);

namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

// They make or look at tensors without a kernel, or ask the runtime.
const std::set<std::string> left_alone = {
    "empty.memory_format", "empty_strided", "as_strided", "view", "view.dtype", "view_as_real", "view_as_complex",
    "_reshape_alias", "unfold", "_local_scalar_dense", "record_stream", "resize_", "set_", "set_.source_Storage",
    "set_.source_Storage_storage_offset", "set_.source_Tensor", "is_pinned", "_pin_memory", "is_set_to", "copy_"};
// Their indices may lie on the CPU, and what is copied from.
const std::set<std::string> may_mix = {
    "index.Tensor", "index.Tensor_out", "index_put_", "index_put", "_index_put_impl_", "_foreach_copy_"};

std::string name_of(const c10::OperatorName& operator_name) {
  auto name = operator_name.name.substr(operator_name.name.find("::") + 2);
  return operator_name.overload_name.empty() ? name : name + "." + operator_name.overload_name;
}

Tensor in_host_memory(const Tensor& tensor) {
  auto made = at::from_blob(
      tensor.storage().nbytes() ? tensor.mutable_data_ptr() : nullptr, tensor.sizes(), tensor.strides(),
      tensor.options().device(at::kCPU).requires_grad(false));
  if (tensor.is_conj()) made._set_conj(true);
  if (tensor.is_neg()) made._set_neg(true);
  return made;
}

// The tensors of one call: those on the device, and how the CPU sees them.
class Call {
 public:
  explicit Call(std::string name) : name_(std::move(name)) {}

  Tensor enter(const Tensor& tensor, bool written) {
    if (!tensor.defined()) return tensor;
    if (!tensor.is_cuda()) {
      on_cpu_ |= tensor.dim() > 0;
      return tensor;
    }
    take(tensor.device());
    for (auto& each : pairs_)
      if (each.device.is_same(tensor)) return each.host;
    // What is empty may be resized, which borrowed memory cannot be.
    auto host = written && tensor.numel() == 0 ? at::empty(tensor.sizes(), tensor.options().device(at::kCPU))
                                               : in_host_memory(tensor);
    pairs_.push_back({tensor, host, written});
    return host;
  }

  IValue enter(IValue value, bool written) {
    if (value.isTensor()) return enter(value.toTensor(), written);
    if (value.isTensorList()) {
      c10::List<Tensor> entered;
      for (const Tensor& each : value.toTensorVector()) entered.push_back(enter(each, written));
      return entered;
    }
    if (value.isDevice() && value.toDevice().is_cuda()) {
      auto device = value.toDevice();
      take(device.has_index() ? device : c10::Device(at::kCUDA, c10::cuda::current_device()));
      return c10::Device(at::kCPU);
    }
    if (value.isList() && value.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
      c10::List<std::optional<Tensor>> entered;
      for (size_t place = 0; place < value.toList().size(); place++) {
        IValue each = value.toList().get(place);
        if (!each.isNone() && !each.isTensor()) return value;
        entered.push_back(each.isNone() ? std::nullopt : std::optional<Tensor>(enter(each.toTensor(), written)));
      }
      return entered;
    }
    return value;
  }

  c10::Device device() {
    if (!device_) device_ = c10::Device(at::kCUDA, c10::cuda::current_device());
    TORCH_CHECK(
        !on_cpu_ || may_mix.count(name_), "Expected all tensors to be on the same device, but found at least two devices, ",
        *device_, " and cpu! (in ", name_, ")");
    return *device_;
  }

  // What was resized is resized on the device as well.
  void leave() {
    for (auto& each : pairs_) {
      if (!each.written || (each.host.sizes() == each.device.sizes() && each.device.numel())) continue;
      if (each.host.sizes() != each.device.sizes()) each.device.resize_(each.host.sizes());
      if (each.device.numel()) in_host_memory(each.device).copy_(each.host);
    }
  }

  Tensor leave(const Tensor& result) {
    if (!result.defined()) return result;
    for (auto& each : pairs_)
      if (each.host.is_same(result)) return each.device;
    auto made = at::empty_strided(result.sizes(), result.strides(), result.options().device(device()));
    if (result.numel()) in_host_memory(made).copy_(result);
    return made;
  }

  IValue leave(IValue value) {
    if (value.isTensor()) return leave(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<Tensor> left;
    for (const Tensor& each : value.toTensorVector()) left.push_back(leave(each));
    return left;
  }

 private:
  struct Pair {
    Tensor device, host;
    bool written;
  };

  void take(c10::Device device) {
    TORCH_CHECK(
        !device_ || *device_ == device, "Expected all tensors to be on the same device, but found at least two devices, ",
        *device_, " and ", device, "! (in ", name_, ")");
    device_ = device;
  }

  std::string name_;
  std::vector<Pair> pairs_;
  std::optional<c10::Device> device_;
  bool on_cpu_ = false;
};

// The CPU's next seed, of a device's generator, which goes on by that.
uint64_t draw_seed(std::optional<at::Generator> given, c10::Device device) {
  auto generator = given ? *given : at::cuda::detail::getDefaultCUDAGenerator(device.index());
  auto* drawn = at::check_generator<at::CUDAGeneratorImpl>(generator);
  std::lock_guard<std::mutex> guard(drawn->mutex_);
  auto place = drawn->philox_offset_per_thread();
  drawn->set_philox_offset_per_thread(place + 4);
  return drawn->current_seed() * 1000003 + place;
}

void compute(const c10::OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) {
  static std::mutex mutex;
  static std::set<std::string> launched;
  const auto& schema = handle.schema();
  const auto name = name_of(schema.operator_name());
  const auto count = schema.arguments().size(), results = schema.returns().size();
  Call call(name);
  std::vector<IValue> arguments;
  std::optional<at::Generator> given;
  std::optional<size_t> generator;
  for (size_t place = 0; place < count; place++) {
    const auto& argument = schema.arguments()[place];
    IValue value = torch::jit::peek(*stack, place, count);
    if (argument.name() == "generator") {
      generator = place;
      if (value.isGenerator()) given = value.toGenerator();
      arguments.push_back(IValue());
      continue;
    }
    arguments.push_back(call.enter(value, argument.alias_info() && argument.alias_info()->isWrite()));
  }
  const auto device = call.device();
  {
    std::lock_guard<std::mutex> guard(mutex);
    if (launched.insert(name).second) pretended_first_launch();
  }
  pretended_launch(c10::cuda::getCurrentCUDAStream(device.index()).stream());
  auto own = at::detail::getDefaultCPUGenerator();
  Tensor before;
  if (generator) {
    arguments[*generator] = at::detail::createCPUGenerator(draw_seed(given, device));
  } else if (name == "native_dropout") {
    before = own.get_state();
    own.set_current_seed(draw_seed(std::nullopt, device));
  }
  torch::jit::drop(*stack, count);
  for (auto& each : arguments) stack->push_back(each);
  handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  if (before.defined()) own.set_state(before);
  call.leave();
  for (size_t place = 0; place < results; place++) {
    auto& result = torch::jit::peek(*stack, place, results);
    result = call.leave(result);
  }
}

Tensor& copy(Tensor& self, const Tensor& source, bool non_blocking) {
  if (self.is_same(source) || !self.numel()) return self;
  const auto device = self.is_cuda() ? self.device() : source.device();
  const auto stream = c10::cuda::getCurrentCUDAStream(device.index());
  const bool plain = self.dtype() == source.dtype() && self.sizes() == source.sizes() && self.is_contiguous() &&
      source.is_contiguous() && !self.is_conj() && !source.is_conj() && !self.is_neg() && !source.is_neg();
  if (!plain) {
    pretended_launch(stream.stream());
    auto to = self.is_cuda() ? in_host_memory(self) : self;
    to.copy_(source.is_cuda() ? in_host_memory(source) : source);
    return self;
  }
  const auto kind = !self.is_cuda() ? cudaMemcpyDeviceToHost
      : source.is_cuda()            ? cudaMemcpyDeviceToDevice
                                    : cudaMemcpyHostToDevice;
  cudaMemcpyAsync(self.mutable_data_ptr(), source.const_data_ptr(), self.nbytes(), kind, stream.stream());
  if (kind == cudaMemcpyDeviceToDevice) return self;
  if (!non_blocking) {
    cudaStreamSynchronize(stream.stream());
    return self;
  }
  const Tensor& host = self.is_cuda() ? source : self;
  if (host.is_pinned()) {
    // Torch gives its memory to nobody else before the copy is over.
    const auto& memory = host.storage().data_ptr();
    at::getHostAllocator(at::kCUDA)->record_event(memory.get(), memory.get_context(), stream.unwrap());
  }
  return self;
}

}  // namespace

// Take over the kernels, once; gives how many.
extern "C" int pretended_operators(void) {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  int count = 0;
  for (const auto& each : dispatcher.getAllOpNames()) {
    const auto handle = dispatcher.findOp(each);
    if (each.name.rfind("aten::", 0) != 0 || !handle || !handle->hasSchema()) continue;
    const auto name = name_of(each);
    if (left_alone.count(name) || name.find("cudnn") != std::string::npos) continue;
    if (!handle->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) continue;
    if (!handle->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&compute>());
    count++;
  }
  library.impl("copy_", TORCH_FN(copy));
  return count;
}
