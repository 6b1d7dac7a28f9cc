"""The module of each of onnxruntime's public names. Imports nothing: `aspen_mp` looks here, too."""

from __future__ import annotations

_MODULES = {
    "values.binding": ("IOBinding", "SessionIOBinding"),
    "models.adapters": ("AdapterFormat", "LoraAdapter"),
    "models.compiler": ("ModelCompiler", "OrtExternalInitializerInfo"),
    "models.described": ("OrtEpAssignedNode", "OrtEpAssignedSubgraph"),
    "values.devices": (
        *("OrtAllocatorType", "OrtArenaCfg", "OrtDevice", "OrtDeviceMemoryType", "OrtDeviceVendorId"),
        *("OrtExecutionProviderDevicePolicy", "OrtHardwareDeviceType", "OrtMemType", "OrtMemoryInfo", "OrtMemoryInfoDeviceType"),
    ),
    "environment": (
        *("create_and_register_allocator", "create_and_register_allocator_v2", "disable_telemetry_events", "enable_telemetry_events"),
        *("get_build_info", "get_device", "get_ep_devices", "get_version_string", "has_collective_ops", "preload_dlls"),
        *("print_debug_info", "set_default_logger_callback", "set_default_logger_severity", "set_default_logger_verbosity"),
        "set_global_thread_pool_sizes",
    ),
    "options": (
        *("ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "ModelMetadata", "ModelPackageWriteMode", "NodeArg"),
        *("OrtCompileApiFlags", "RunOptions", "SessionOptions"),
    ),
    "providers": ("get_all_providers", "get_available_providers"),
    "refusals": (
        *("ModelPackage", "ModelPackageComponentContext", "ModelPackageContext"),
        *("ModelPackageOptions", "OrtEpContextData", "OrtEpContextDataBuffer"),
        *("OrtEpDevice", "OrtHardwareDevice", "OrtSyncStream"),
        *("register_execution_provider_library", "unregister_execution_provider_library"),
    ),
    "seeds": ("set_seed",),
    "session": ("InferenceSession",),
    "values.sparse": ("OrtSparseFormat", "SparseTensor"),
    "values.ort_value": ("OrtValue", "copy_tensors"),
}

WHERE: dict[str, str] = {name: f"aspen_mp.compat.onnxruntime.{module}" for module, names in _MODULES.items() for name in names}
"""{name: module}."""
